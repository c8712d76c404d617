"""mooncake_holder.py ADDRESS BYTES: gives memory to a Mooncake Store until stdin ends; says "ready" once it does."""
import sys

import arm
from mooncake_arm import connect

PORT = 50071

if __name__ == "__main__":
    out = arm.private_stdout()
    store = connect(sys.argv[1], PORT, int(sys.argv[2]))
    print("ready", file=out)
    sys.stdin.read()
