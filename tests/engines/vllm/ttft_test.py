"""Time to first token, once, short: all whole blocks come from kvtier. The ratio is printed and not judged,
as this machine has other things to do; ttft.py has the figures."""
import unittest

from ttft import measure


class TtftTest(unittest.TestCase):

    def test_a_warm_prompt_is_loaded_whole(self):
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype):
                figures = measure(dtype, tokens=2000, rounds=2, multiprocess=False)
                print(figures.text(), flush=True)
                self.assertEqual(figures.cached, 1984)
                self.assertLess(figures.warm_seconds, figures.plain_seconds)


if __name__ == "__main__":
    unittest.main()
