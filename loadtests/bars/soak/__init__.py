"""The soak: very many requests through a gateway, with everything going wrong on both sides of it, all the time."""
