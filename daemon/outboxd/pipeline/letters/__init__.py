"""Dead letters: what becomes of a failure, how a letter is made, which sink takes it, and how it gets home."""
