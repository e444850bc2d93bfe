"""How databases of older versions become databases of this one."""
