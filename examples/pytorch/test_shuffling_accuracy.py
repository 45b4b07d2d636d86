import unittest

import numpy

import shuffling_accuracy


class Shares(unittest.TestCase):
    labels = numpy.random.default_rng(1).integers(10, size=643)

    def test_first_shares_are_sorted_by_class(self):
        shares = shuffling_accuracy.first_shares(self.labels, 8)
        self.assertEqual(shares.shape, (8, 80))
        classes = self.labels[shares.ravel()]
        self.assertTrue((classes[1:] >= classes[:-1]).all())

    def test_no_sample_is_lost(self):
        for workers in 2, 8, 32:
            first = set(shuffling_accuracy.first_shares(self.labels, workers).ravel())
            for strategy in shuffling_accuracy.STRATEGIES:
                rng = numpy.random.default_rng(2)
                for shares in shuffling_accuracy.epochs(self.labels, workers, strategy, 5, rng):
                    self.assertEqual(set(shares.ravel()), first)
                    self.assertEqual(shares.size, len(first))

    def test_fraction_moves(self):
        rng = numpy.random.default_rng(3)
        shares = numpy.arange(640).reshape(8, 80)
        for fraction, moved in (0, 0), (0.3, 24), (1, 80):
            before = [set(share) for share in shares]
            shuffling_accuracy.exchange(shares, fraction, rng)
            for old, share in zip(before, shares):
                self.assertEqual(len(set(share) - old), moved)


class Training(unittest.TestCase):
    def test_global_learns_and_local_does_not(self):
        """Eight workers with batch normalization and shares of one or two classes."""
        data = shuffling_accuracy.load("digits", None)
        accuracy = {s: shuffling_accuracy.train(data, 8, True, s, 0, 8, 8, 0.2) for s in ("local", "0.3", "global")}
        self.assertGreater(accuracy["global"], 0.93, accuracy)
        self.assertGreater(accuracy["0.3"], 0.9, accuracy)
        self.assertLess(accuracy["local"], accuracy["global"], accuracy)


if __name__ == "__main__":
    unittest.main()
