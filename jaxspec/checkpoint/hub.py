"""placeholder"""
from pathlib import Path
def resolve(name): return Path(name)
