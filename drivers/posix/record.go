package posix

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// A record describes one copy: which file it is, which version of which source file it holds,
// and the checksum of each of its blocks. A copy without a valid record is not a copy.
//
// On disk a record is little-endian and has recordSize bytes and 4 for each block:
//
//	 0  magic
//	 4  inode number of the copy
//	12  hash of its name
//	20  size; -1: the copy was removed
//	28  modification time, seconds; 36 nanoseconds
//	40  ctime of the source file, seconds; 48 nanoseconds
//	52  mode, owner, group and number of links of the source file, 4 bytes each
//	68  with linkMagic and timeMagic, modification time of the copy, seconds; 76 nanoseconds
//	    CRC-32C of each block
//	    CRC-32C of all of the above
//
// A file that Link has given further names has one record for each of them, which are links.
type record struct {
	inode  uint64
	name   uint64       // nameHash of the name
	source drivers.Info // attributes of the source file; Size is also that of the copy
	link   bool         // the name was made by Link
	mtime  time.Time    // modification time of the copy: mostly that of source, which some file systems cannot store
	sums   []uint32     // CRC-32C of each block of drivers.ChecksumBlock bytes
}

const (
	recordMagic  = "mwc1" // mtime is that of source
	linkMagic    = "mwc2" // of a link
	timeMagic    = "mwc3" // mtime is another one
	recordHeader = 68
	timeHeader   = recordHeader + 12
	recordSize   = recordHeader + 4 // bytes of the shortest record
	removedSize  = -1               // size of a record of a removed copy
)

// nameHash returns the hash of a name that is stored in records. It only has to differ
// between the names of a dataset that an administrator may exchange by mistake.
func nameHash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// blocksOf returns the number of blocks of a copy of size bytes.
func blocksOf(size int64) int64 {
	if size <= 0 {
		return 0
	}
	return (size-1)/drivers.ChecksumBlock + 1
}

// appendTo appends the encoded record to b.
func (r *record) appendTo(b []byte) []byte {
	start, le := len(b), binary.LittleEndian
	magic := recordMagic
	switch {
	case r.link:
		magic = linkMagic
	case !r.mtime.Equal(r.source.Mtime):
		magic = timeMagic
	}
	b = append(b, magic...)
	b = le.AppendUint64(b, r.inode)
	b = le.AppendUint64(b, r.name)
	b = le.AppendUint64(b, uint64(r.source.Size))
	b = appendTime(b, r.source.Mtime)
	b = appendTime(b, r.source.Ctime)
	for _, v := range [...]uint32{r.source.Mode, r.source.UID, r.source.GID, r.source.Nlink} {
		b = le.AppendUint32(b, v)
	}
	if magic != recordMagic {
		b = appendTime(b, r.mtime)
	}
	for _, sum := range r.sums {
		b = le.AppendUint32(b, sum)
	}
	return le.AppendUint32(b, drivers.Checksum(0, b[start:]))
}

func appendTime(b []byte, t time.Time) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Unix()))
	return binary.LittleEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

// Errors of decodeRecord.
var (
	errNoRecord    = errors.New("not a record")
	errShortRecord = errors.New("the record continues")
)

// decodeRecord decodes the record at the start of b and returns its length. The error is
// errShortRecord if b may be the start of a longer record, and then n is that length.
func decodeRecord(b []byte) (r record, n int64, err error) {
	le := binary.LittleEndian
	if len(b) < recordSize {
		return record{}, recordSize, errShortRecord
	}
	header := int64(recordHeader)
	switch string(b[:4]) {
	case recordMagic:
	case linkMagic, timeMagic:
		header = timeHeader
	default:
		return record{}, 0, errNoRecord
	}
	size := int64(le.Uint64(b[20:]))
	if size < removedSize {
		return record{}, 0, errNoRecord
	}
	blocks := blocksOf(size)
	n = header + 4*blocks + 4
	if n > int64(len(b)) {
		return record{}, n, errShortRecord
	}
	if le.Uint32(b[n-4:]) != drivers.Checksum(0, b[:n-4]) {
		return record{}, 0, errNoRecord
	}
	r = record{inode: le.Uint64(b[4:]), name: le.Uint64(b[12:]), link: string(b[:4]) == linkMagic}
	r.source = drivers.Info{
		Size: size, Mtime: decodeTime(b[28:]), Ctime: decodeTime(b[40:]),
		Mode: le.Uint32(b[52:]), UID: le.Uint32(b[56:]), GID: le.Uint32(b[60:]), Nlink: le.Uint32(b[64:]),
	}
	r.mtime = r.source.Mtime
	if header == timeHeader {
		r.mtime = decodeTime(b[recordHeader:])
	}
	if blocks > 0 {
		r.sums = make([]uint32, blocks)
	}
	for i := range r.sums {
		r.sums[i] = le.Uint32(b[header+4*int64(i):])
	}
	return r, n, nil
}

func decodeTime(b []byte) time.Time {
	return time.Unix(int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint32(b[8:])))
}

// describes reports whether the record is that of the file i of a tier, which has a name.
func (r *record) describes(name string, i drivers.Info) bool {
	return r.inode == i.Inode && r.name == nameHash(name) && r.source.Size == i.Size && r.mtime.Equal(i.Mtime)
}

// apply replaces the attributes in i, of a file in a tier, by those that the source file had
// when it was copied.
func (r *record) apply(i drivers.Info) drivers.Info {
	i.Mode, i.Mtime = i.Type()|r.source.Mode&0o7777, r.source.Mtime
	i.Ctime, i.Nlink, i.UID, i.GID = r.source.Ctime, r.source.Nlink, r.source.UID, r.source.GID
	return i
}
