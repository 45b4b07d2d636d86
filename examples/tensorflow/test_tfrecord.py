"""Tests of tfrecord.py. Run them in this folder with: python3 -m unittest test_tfrecord"""
import contextlib
import io
import os
import random
import struct
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import tfrecord


def bitwise_crc32c(data):
    """Computes CRC-32C by its definition, one bit at a time."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


class CRC32C(unittest.TestCase):
    def test_known_values(self):
        for data, want in (
                (b"", 0x00000000),
                (b"123456789", 0xE3069283),             # the check value of CRC catalogues
                (bytes(32), 0x8A9136AA),                # this and the rest: RFC 3720, appendix B.4
                (b"\xff" * 32, 0x62A8AB43),
                (bytes(range(32)), 0x46DD794E),
                (bytes(range(31, -1, -1)), 0x113FDB5C),
        ):
            self.assertEqual(tfrecord.crc32c(data), want, data)

    def test_equals_the_definition_at_every_short_length_and_around_blocks(self):
        data = random.Random(1).randbytes(3 * tfrecord.BLOCK)
        blocks = [tfrecord.BLOCK * n + d for n in (1, 2) for d in (-1, 0, 1, 2, 3, 4, 5)]
        for length in [*range(40), *blocks]:
            self.assertEqual(tfrecord.crc32c(data[:length]), bitwise_crc32c(data[:length]), length)


class Records(unittest.TestCase):
    RECORDS = [b"", b"foo", bytes(range(256)) * 40]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "a.tfrecord")
        with open(self.path, "wb") as file:
            for data in self.RECORDS:
                tfrecord.write_record(file, data)

    def test_round_trip(self):
        self.assertEqual(list(tfrecord.read_records(self.path)), self.RECORDS)

    def test_layout(self):
        raw = Path(self.path).read_bytes()
        self.assertEqual(len(raw), sum(16 + len(data) for data in self.RECORDS))
        # An empty record: the length 0, the checksum of 8 zero bytes, the checksum of no bytes.
        crc = bitwise_crc32c(bytes(8))
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        self.assertEqual(raw[:16], bytes(8) + struct.pack("<II", masked, 0xA282EAD8))

    def test_flipped_bit_is_found_at_the_offset_of_its_record(self):
        raw = Path(self.path).read_bytes()
        starts = [0, 16, 35]    # offsets of the records
        for flipped in [*range(36 + 12), len(raw) // 2, len(raw) - 1]:
            Path(self.path).write_bytes(raw[:flipped] + bytes([raw[flipped] ^ 1]) + raw[flipped + 1:])
            with self.assertRaises(tfrecord.CorruptRecord) as caught:
                list(tfrecord.read_records(self.path))
            self.assertEqual(caught.exception.offset, max(s for s in starts if s <= flipped), flipped)
            self.assertIn(f"offset {caught.exception.offset}:", str(caught.exception))

    def test_truncation_is_found_unless_it_is_between_records(self):
        raw = Path(self.path).read_bytes()
        for end in range(1, 60):
            Path(self.path).write_bytes(raw[:end])
            if end in (16, 35):
                list(tfrecord.read_records(self.path))
                continue
            with self.assertRaises(tfrecord.CorruptRecord, msg=end):
                list(tfrecord.read_records(self.path))


class Example(unittest.TestCase):
    def test_round_trip(self):
        for label in 0, 1, 127, 128, 2**63 - 1, -1, -2**63:
            data = tfrecord.encode_example({"image": b"\x00\xff" * 300, "label": label})
            self.assertEqual(tfrecord.decode_example(data), {"image": [b"\x00\xff" * 300], "label": [label]})

    def test_bytes_that_protobuf_writes(self):
        # A tf.train.Example with image "ab" and label 300, serialized by python3-protobuf 3.21.
        want = bytes.fromhex("0a22"                                             # features
                             "0a0f" "0a05" "696d616765" "1206" "0a04" "0a02" "6162"   # image
                             "0a0f" "0a05" "6c6162656c" "1206" "1a04" "0a02" "ac02")  # label
        self.assertEqual(tfrecord.encode_example({"image": b"ab", "label": 300}), want)

    def test_unpacked_numbers_and_truncated_example(self):
        label = b"\x0a\x05label"
        unpacked = b"\x12\x06\x1a\x04\x08\x07\x08\x09"
        data = b"\x0a\x11\x0a\x0f" + label + unpacked
        self.assertEqual(tfrecord.decode_example(data), {"label": [7, 9]})
        with self.assertRaises(ValueError):
            tfrecord.decode_example(data[:-1])


class Commands(unittest.TestCase):
    def run_main(self, *args):
        out, err = io.StringIO(), io.StringIO()
        with mock.patch("sys.argv", ["tfrecord.py", *map(str, args)]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = tfrecord.main()
        return status or 0, out.getvalue(), err.getvalue()

    def test_write_read_verify(self):
        with tempfile.TemporaryDirectory() as folder:
            images, out = Path(folder, "images"), Path(folder, "out")
            for number in range(10):
                path = images / f"class{number % 2}" / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes([number]) * 100)
            self.assertEqual(self.run_main("write", out, "--from", images, "--shards", 3)[0], 0)

            files = sorted(out.iterdir())
            self.assertEqual([f.name for f in files], [f"images-0000{n}-of-00003.tfrecord" for n in range(3)])
            examples = [tfrecord.decode_example(data) for f in files for data in tfrecord.read_records(f)]
            got = sorted((e["image"][0], e["label"][0]) for e in examples)
            self.assertEqual(got, [(bytes([n]) * 100, n % 2) for n in range(10)])

            status, text, _ = self.run_main("read", *files)
            self.assertEqual((status, text.split(",")[0]), (0, "10 records"))
            self.assertEqual(self.run_main("verify", *files)[0], 0)

            raw = bytearray(files[1].read_bytes())
            raw[-1] ^= 1
            files[1].write_bytes(raw)
            status, text, errors = self.run_main("verify", *files)
            self.assertEqual(status, 1)
            self.assertIn(str(files[1]), errors)
            self.assertIn(str(files[2]), text)      # verify continues after a corrupt file
            self.assertEqual(self.run_main("read", *files)[0], 1)


if __name__ == "__main__":
    unittest.main()
