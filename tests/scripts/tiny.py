"""Command lines on the tiny pair. Most tests share three compiled programs: plain decoding of one row with
log-probabilities, speculation of one row, and two rows under `coupled`, where temperature 0 is greedy too.
"""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "checkpoints" / "tiny"
LM = f"lm:{TINY / 'draft'}"
TARGET = ["--target", str(TINY / "target")]
PLAIN = [*TARGET, "--no-speculation", "--logprobs", "--max-new-tokens", "24"]
FAST = [*TARGET, "--draft", "lookup", "--draft", "exit:2", "--lookahead", "3", "--max-new-tokens", "24"]
PAIR = [*TARGET, "--no-speculation", "--verify", "coupled", "--max-new-tokens", "24"]
PROMPT = "It was a fine morning, and"
OTHER = "KING HENRY:\nMy lord,"
