#!/usr/bin/env python3
"""Write, read and verify TFRecord files of images and labels without TensorFlow.

    tfrecord.py write DIR --from IMAGES [--shards N]   packs IMAGES/<class>/<image>, the layout of ImageFolder
    tfrecord.py read FILE...                           prints counts and the SHA-256 of the records
    tfrecord.py verify FILE...                         verifies all checksums; prints the offset of corrupt records

A TFRecord file is a sequence of records. Numbers are little-endian:

    8 bytes   length of the data
    4 bytes   masked CRC-32C of the length
    length    data, here a serialized tf.train.Example
    4 bytes   masked CRC-32C of the data
"""
import argparse
import hashlib
import struct
import sys
from pathlib import Path

import numpy

BLOCK = 4096    # bytes that are processed by one numpy operation; its table takes 4 MiB


class CorruptRecord(ValueError):
    """A record that is truncated or has a wrong checksum. Its offset is that of its first byte."""

    def __init__(self, path, offset, reason):
        super().__init__(f"{path}: record at offset {offset}: {reason}")
        self.path, self.offset, self.reason = path, offset, reason


# CRC-32C. The checksum is linear: the checksum of a block is the exclusive or of one value for each
# byte. This value depends only on the byte and on the number of bytes that follow it.

def _contributions():
    """Returns T, where T[k][b] is the state of the checksum after byte b and k zero bytes."""
    table = numpy.empty((BLOCK, 256), numpy.uint32)
    table[0] = numpy.arange(256)
    for _ in range(8):
        table[0] = (table[0] >> 1) ^ (0x82F63B78 * (table[0] & 1))
    for k in range(1, BLOCK):
        table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 0xFF]
    return table


_TABLE = _contributions().ravel()
_ROWS = numpy.arange(BLOCK - 1, -1, -1) * 256   # the index in _TABLE of the row for each byte of a block


def crc32c(data):
    """Returns the CRC-32C (Castagnoli) of a bytes-like object."""
    data = numpy.frombuffer(data, numpy.uint8)
    state = 0xFFFFFFFF
    for start in range(0, len(data), BLOCK):
        block = data[start:start + BLOCK]
        index = _ROWS[BLOCK - len(block):] + block
        # To continue from a state, combine it with the first 4 bytes, or fewer in a short block.
        index[:4] ^= numpy.frombuffer(struct.pack("<I", state), numpy.uint8)[:len(block)]
        state = state >> 8 * len(block) ^ int(numpy.bitwise_xor.reduce(_TABLE[index]))
    return state ^ 0xFFFFFFFF


def masked_crc32c(data):
    """Returns the checksum as TFRecord stores it.

    The checksum is masked, because a CRC of data that contains CRCs is weak.
    """
    crc = crc32c(data)
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


# Records.

def write_record(file, data):
    """Appends a record with the given data to an open file."""
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_crc32c(length)))
    file.write(data + struct.pack("<I", masked_crc32c(data)))


def read_records(path):
    """Yields the data of each record. Raises CorruptRecord at the first invalid record."""
    with open(path, "rb") as file:
        offset = 0
        while header := file.read(12):
            if len(header) < 12:
                raise CorruptRecord(path, offset, f"{len(header)} of 12 bytes of the header")
            length, crc = struct.unpack("<QI", header)
            if crc != masked_crc32c(header[:8]):
                raise CorruptRecord(path, offset, "checksum of the length differs")
            body = file.read(length + 4)
            if len(body) < length + 4:
                raise CorruptRecord(path, offset, f"{len(body)} of {length + 4} bytes of data and checksum")
            data = body[:length]
            if struct.unpack("<I", body[length:]) != (masked_crc32c(data),):
                raise CorruptRecord(path, offset, "checksum of the data differs")
            yield data
            offset += 12 + length + 4


# tf.train.Example in the wire format of protocol buffers. A message is a sequence of fields. A field
# is a key (field number << 3 | wire type) and a value. A value of wire type 0 is a varint. A value of
# wire type 2 is a length and as many bytes.
#
#   Example  { Features features = 1; }
#   Features { map<string, Feature> feature = 1; }    an entry is { string key = 1; Feature value = 2; }
#   Feature  { oneof { BytesList bytes_list = 1; FloatList float_list = 2;
#                      Int64List int64_list = 3; } }
#   …List    { repeated … value = 1; }

def _varint(number):
    number &= 0xFFFFFFFFFFFFFFFF    # a negative int64 is encoded as its two's complement
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number, payload):
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def encode_example(features):
    """Returns a serialized tf.train.Example of {name: bytes or int}."""
    entries = bytearray()
    for name in sorted(features):
        value = features[name]
        if isinstance(value, bytes):
            feature = _field(1, _field(1, value))
        else:
            feature = _field(3, _field(1, _varint(value)))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, bytes(entries))


def _read_varint(data, offset):
    """Returns the varint at an offset, and the offset of the byte after it."""
    number = shift = 0
    while True:
        if offset == len(data) or shift > 63:
            raise ValueError("varint does not end")
        number |= (data[offset] & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if data[offset - 1] < 0x80:
            return number, offset


def _fields(message):
    """Yields (number, value) for each field. The value is an int or bytes."""
    offset = 0
    while offset < len(message):
        key, offset = _read_varint(message, offset)
        value, offset = _read_varint(message, offset)
        if key & 7 == 2:
            value, offset = message[offset:offset + value], offset + value
        elif key & 7 != 0:
            raise ValueError(f"wire type {key & 7} in field {key >> 3}")
        if offset > len(message):
            raise ValueError(f"field {key >> 3} is truncated")
        yield key >> 3, value


def _int64s(values):
    """Yields the numbers of an Int64List, packed or not."""
    for value in values:
        packed, offset = (value, 0) if isinstance(value, bytes) else (_varint(value), 0)
        while offset < len(packed):
            number, offset = _read_varint(packed, offset)
            yield number - (1 << 64) if number >> 63 else number


def _values(feature):
    for kind, payload in _fields(feature):
        values = [value for _, value in _fields(payload)]
        if kind == 1:
            return values
        if kind == 3:
            return list(_int64s(values))
        raise ValueError(f"feature of kind {kind}: only bytes_list and int64_list are supported")
    return []


def decode_example(data):
    """Returns {name: list of bytes or int} of a serialized tf.train.Example."""
    features = {}
    for _, message in _fields(data):
        for _, entry in _fields(message):
            pair = dict(_fields(entry))
            features[pair.get(1, b"").decode()] = _values(pair.get(2, b""))
    return features


# The commands.

def labelled_images(folder):
    """Returns [(path, label)] of folder/<class>/<image>.

    The label is the index of the class in alphabetical order.
    """
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    return [(path, label) for label, name in enumerate(classes) for path in sorted(name.iterdir())]


def write(args):
    images = labelled_images(args.images)
    args.dir.mkdir(parents=True, exist_ok=True)
    for shard in range(args.shards):
        path = args.dir / f"images-{shard:05}-of-{args.shards:05}.tfrecord"
        with open(path, "wb") as file:
            for image, label in images[shard::args.shards]:
                write_record(file, encode_example({"image": image.read_bytes(), "label": label}))
    print(f"{len(images)} records in {args.shards} files in {args.dir}")


def read(args):
    records = size = 0
    digest = hashlib.sha256()
    for path in args.files:
        for data in read_records(path):
            digest.update(data)
            records, size = records + 1, size + len(data)
    print(f"{records} records, {size} bytes of data, sha256 {digest.hexdigest()}")


def verify(args):
    corrupt = 0
    for path in args.files:
        try:
            print(f"{path}: {sum(1 for _ in read_records(path))} records")
        except CorruptRecord as error:
            print(error, file=sys.stderr)
            corrupt += 1
    return 1 if corrupt else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)

    command = commands.add_parser("write", help="pack a folder of images")
    command.add_argument("dir", type=Path, metavar="DIR")
    command.add_argument("--from", type=Path, dest="images", metavar="IMAGES", required=True)
    command.add_argument("--shards", type=int, default=4, help="number of files (default 4)")
    command.set_defaults(run=write)

    for run, text in (read, "count and hash the records"), (verify, "verify all checksums"):
        command = commands.add_parser(run.__name__, help=text)
        command.add_argument("files", nargs="+", metavar="FILE")
        command.set_defaults(run=run)

    args = parser.parse_args()
    try:
        return args.run(args)
    except (CorruptRecord, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
