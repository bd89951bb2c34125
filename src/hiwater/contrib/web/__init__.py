"""Web servers: each request is a scope, and each route has its sums. The public names are in `hiwater.asgi` and
`hiwater.wsgi`."""
