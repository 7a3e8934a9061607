"""`lastgood demo`: the whole promise in a few minutes, on a real training job that is really killed, through the flows.

- `command`: the command.
- `story`: what happens, in order.
- `pipeline`: the stack, what is deployed on it, the watcher, and flow runs that are asked for and awaited.
- `checks`: what must be true after each step, as functions that tests try on sabotaged outcomes.

The story's own process imports no Prefect: it starts programs and asks the server over HTTP, as anybody would.
"""
