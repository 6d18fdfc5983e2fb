"""What happens to a batch of rows or to a record; knows no task and no server."""
