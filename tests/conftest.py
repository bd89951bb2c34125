"""Signals as a program in a terminal finds them: started in the background (`&`, nohup), the suite and all it starts would ignore two."""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
