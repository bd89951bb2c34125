"""The libraries that hand out memory of devices: one module for each, which says what it knows of its devices.
`hiwater._registry` lists them."""
