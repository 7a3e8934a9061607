"""`lastgood demo`: the whole promise in a few minutes, on a real training job that is really killed.

- `story`: what happens, in order.
- `checks`: what must be true after each step, as functions that tests try on sabotaged outcomes.
"""
