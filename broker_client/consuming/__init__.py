"""The consuming side: consumers kept alive; deliveries checked, handled and settled."""
