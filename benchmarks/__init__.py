"""What the product is measured by; not shipped."""
