"""Read a lab's files and settings, or refuse them clearly."""
