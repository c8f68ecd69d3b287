"""Run-time outcomes of a row: codes in the state, with the words a person reads."""

RUNNING = 0
STOP = 1
LENGTH = 2
HALTED = 3

FINISH_REASON = {RUNNING: "running", STOP: "stop", LENGTH: "length", HALTED: "interrupted"}

MESSAGE = {
    RUNNING: "the row is still being generated",
    STOP: "a stop id or stop string was produced",
    LENGTH: "max_new_tokens were produced",
    HALTED: "the caller stopped the row; call the loop again with a new request to go on",
}
