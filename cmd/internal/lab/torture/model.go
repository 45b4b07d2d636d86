package torture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

// pageSize is the unit in which content is generated, in bytes. Each page begins with a
// header of headerSize bytes that names the file, the version and the page.
const (
	pageSize   = 4096
	headerSize = 16
)

// minRead is the size of the smallest read from which Identify can tell the version, in
// bytes. The last page of each file has at least this size.
const minRead = 64

// The sizes of the files, in bytes.
const (
	minFileSize = 1 << 10
	maxFileSize = 3 << 20
)

// A Model is a dataset in which the content of each version of each file is a function of
// the seed. A Model is immutable.
type Model struct {
	Seed  uint64
	Count int // of files
}

// Name returns the path of a file, relative to the root of the dataset.
func (m Model) Name(file int) string { return fmt.Sprintf("%d/%04d.bin", file%7, file) }

// Resizes reports whether the versions of a file differ in size. Only files of constant
// size are rewritten in place.
func (m Model) Resizes(file int) bool { return file%3 == 0 }

// Size returns the size of a version of a file.
func (m Model) Size(file, version int) int64 {
	if !m.Resizes(file) {
		version = 0
	}
	rng := rand.New(rand.NewPCG(m.Seed, uint64(file)<<32|uint64(version)))
	size := int64(minFileSize * math.Pow(maxFileSize/minFileSize, rng.Float64()))
	if size%pageSize < minRead {
		size += minRead
	}
	return size
}

// fillPage generates a page of a version of a file.
func (m Model) fillPage(p *[pageSize]byte, file, version int, page int64) {
	binary.LittleEndian.PutUint64(p[0:], mix(m.Seed, uint64(file)))
	binary.LittleEndian.PutUint32(p[8:], uint32(version))
	binary.LittleEndian.PutUint32(p[12:], uint32(page))
	x := mix(mix(m.Seed, uint64(file)), uint64(version)<<32|uint64(page))
	for i := headerSize; i < pageSize; i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(p[i:], x^x>>29)
	}
}

// mix returns a hash of two numbers. It is the finalizer of splitmix64.
func mix(a, b uint64) uint64 {
	x := a*0x9e3779b97f4a7c15 + b + 0x632be59bd9b4e019
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Content returns a version of a file.
func (m Model) Content(file, version int) []byte {
	data := make([]byte, m.Size(file, version))
	var page [pageSize]byte
	for off := 0; off < len(data); off += pageSize {
		m.fillPage(&page, file, version, int64(off/pageSize))
		copy(data[off:], page[:])
	}
	return data
}

// equal reports whether p, read at off, is part of a version of a file.
func (m Model) equal(p []byte, file, version int, off int64) bool {
	var page [pageSize]byte
	for len(p) > 0 {
		m.fillPage(&page, file, version, off/pageSize)
		want := page[off%pageSize:]
		n := min(len(p), len(want))
		if !bytes.Equal(p[:n], want[:n]) {
			return false
		}
		p, off = p[n:], off+int64(n)
	}
	return true
}

// Identify returns the version of a file that has p at off, or -1 if there is none.
// newest is the latest version that can exist. p must have at least minRead bytes.
func (m Model) Identify(p []byte, file, newest int, off int64) int {
	if version, ok := m.header(p, file, newest, off); ok {
		if m.equal(p, file, version, off) {
			return version
		}
		return -1
	}
	for version := newest; version >= 0; version-- {
		if m.equal(p, file, version, off) {
			return version
		}
	}
	return -1
}

// header returns the version that the first page header in p names.
func (m Model) header(p []byte, file, newest int, off int64) (version int, ok bool) {
	at := (pageSize - off%pageSize) % pageSize
	if at+headerSize > int64(len(p)) {
		return 0, false
	}
	h := p[at:]
	version = int(binary.LittleEndian.Uint32(h[8:]))
	ok = binary.LittleEndian.Uint64(h) == mix(m.Seed, uint64(file)) && version <= newest &&
		int64(binary.LittleEndian.Uint32(h[12:])) == (off+at)/pageSize
	return version, ok
}

// A Diff describes bytes that are of no version of a file.
type Diff struct {
	Versions []int `json:"versions"`          // the versions of which the bytes have whole pages
	First    int64 `json:"first"`             // offset of the first byte that belongs to no version
	Bytes    int   `json:"bytes"`             // bytes in pages of no version
	Zeros    bool  `json:"zeros,omitempty"`   // some of these pages are zero
	Planted  bool  `json:"planted,omitempty"` // they are of a file that the suite has planted
	Flipped  bool  `json:"flipped,omitempty"` // the bytes differ from a version in one bit, at First
	Bit      int   `json:"bit,omitempty"`     // the bit that is flipped
}

// planted is what a file that the suite plants among the copies consists of.
var planted = []byte("planted ")

// Mixture reports whether each page is of a version.
func (d Diff) Mixture() bool { return d.Bytes == 0 }

// String returns a description for people.
func (d Diff) String() string {
	switch {
	case d.Flipped:
		return fmt.Sprintf("bit %d of byte %d is flipped in version %v", d.Bit, d.First, d.Versions)
	case d.Mixture():
		return fmt.Sprintf("a mixture of the versions %v", d.Versions)
	case d.Planted:
		return fmt.Sprintf("%d bytes from %d on are of a planted file", d.Bytes, d.First)
	case d.Zeros:
		return fmt.Sprintf("%d bytes from %d on are of no version, with pages of zeros; others are of %v", d.Bytes, d.First, d.Versions)
	}
	return fmt.Sprintf("%d bytes from %d on are of no version; others are of %v", d.Bytes, d.First, d.Versions)
}

// Diff describes p, for which Identify returned -1.
func (m Model) Diff(p []byte, file, newest int, off int64) Diff {
	d := Diff{First: -1}
	seen := make(map[int]bool)
	flips := 0
	likely := m.versionOf(p, file, newest, off)
	for start := off; start < off+int64(len(p)); {
		end := min(off+int64(len(p)), start-start%pageSize+pageSize)
		part := p[start-off : end-off]
		v := likely
		if len(part) >= minRead || !m.equal(part, file, likely, start) {
			v = m.Identify(part, file, newest, start)
		}
		if v >= 0 {
			if !seen[v] {
				seen[v] = true
				d.Versions = append(d.Versions, v)
			}
		} else {
			d.Bytes += len(part)
			d.Zeros = d.Zeros || len(bytes.Trim(part, "\x00")) == 0
			d.Planted = d.Planted || bytes.Contains(part, planted)
			at, bit, v, ok := m.flip(part, file, newest, start)
			if flips++; d.First < 0 {
				d.First, d.Bit, d.Flipped = at, bit, ok
			}
			if ok && !seen[v] {
				seen[v] = true
				d.Versions = append(d.Versions, v)
			}
		}
		start = end
	}
	d.Flipped = d.Flipped && flips == 1 && len(d.Versions) == 1
	return d
}

// versionOf returns the version of the first page in p of which enough is in p to tell it. A few bytes of a
// page may be of several versions by chance.
func (m Model) versionOf(p []byte, file, newest int, off int64) int {
	for start := off; start < off+int64(len(p)); start += pageSize - start%pageSize {
		part := p[start-off : min(int64(len(p)), start-start%pageSize+pageSize-off)]
		if v := m.Identify(part, file, newest, start); v >= 0 && len(part) >= minRead {
			return v
		}
	}
	return newest
}

// flip returns the place of the only bit in which part, which lies in one page, differs
// from a version v. If there is none, at is the first offset of part and ok is false.
func (m Model) flip(part []byte, file, newest int, off int64) (at int64, bit, v int, ok bool) {
	var page [pageSize]byte
	for v := newest; v >= 0; v-- {
		m.fillPage(&page, file, v, off/pageSize)
		want := page[off%pageSize:]
		differ := 0
		for i, b := range part {
			if x := b ^ want[i]; x != 0 {
				differ += bits.OnesCount8(x)
				at, bit = off+int64(i), bits.TrailingZeros8(x)
			}
			if differ > 1 {
				break
			}
		}
		if differ == 1 {
			return at, bit, v, true
		}
	}
	return off, 0, 0, false
}
