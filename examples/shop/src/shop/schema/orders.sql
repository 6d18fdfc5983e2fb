create table if not exists orders (
    id bigint generated always as identity primary key,
    item text not null,
    status text not null default 'new',
    sent_to_establishment_at timestamptz
);
