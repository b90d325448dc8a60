"""Request fields, validation, route declarations and the OpenAPI document."""
