"""The JSON API, one module a resource."""
