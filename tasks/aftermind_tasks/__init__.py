"""What each background job does, one module a kind. Importing the package imports no handler."""
