"""What hiwater reads of JAX's backends, with devices that a test makes."""

import threading
import types


def bridge_with(*devices: object) -> types.SimpleNamespace:
    """The module `jax._src.xla_bridge` once the backends are initialised."""
    client = types.SimpleNamespace(local_devices=lambda: list(devices))
    return types.SimpleNamespace(_backend_lock=threading.Lock(), _default_backend=client)
