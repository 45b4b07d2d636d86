package placement

import (
	"bytes"
	"compress/flate"
	"io"
	"slices"
	"sort"
)

// A sequence is a list of numbered names, in chunks of compressed text. Numbers may be missing. A
// million names like those of ImageNet take 14 MB. Each name has a hash beside it, so that a
// search needs no text.
type sequence struct {
	chunks []*chunk // by their start
}

// A chunk is a number of names that follow each other.
type chunk struct {
	start  int64    // number of the first name
	hashes []uint32 // of the names; 0 is a number without a name
	text   []byte   // the names, each with a NUL after it; it may have more of them than hashes
	packed bool     // text is compressed, and no name is added
}

// The bounds of a chunk. Small chunks are cheap to unpack, and are compressed as well as large ones.
const (
	chunkText  = 8 << 10
	chunkNames = 1 << 10
)

// end returns the number after the last name of c.
func (c *chunk) end() int64 { return c.start + int64(len(c.hashes)) }

// size returns the memory that c takes.
func (c *chunk) size() int { return 96 + 4*cap(c.hashes) + cap(c.text) }

// start returns the number of the first name, or 0.
func (s *sequence) start() int64 {
	if len(s.chunks) == 0 {
		return 0
	}
	return s.chunks[0].start
}

// end returns the number after the last name.
func (s *sequence) end() int64 {
	if len(s.chunks) == 0 {
		return 0
	}
	return s.chunks[len(s.chunks)-1].end()
}

// at returns the first chunk that ends after number i, or nil.
func (s *sequence) at(i int64) *chunk {
	n := sort.Search(len(s.chunks), func(n int) bool { return s.chunks[n].end() > i })
	if n == len(s.chunks) {
		return nil
	}
	return s.chunks[n]
}

// find returns the first number from from up to to whose name has a hash, or -1.
func (s *sequence) find(hash uint32, from, to int64) int64 {
	first := sort.Search(len(s.chunks), func(n int) bool { return s.chunks[n].end() > from })
	for _, c := range s.chunks[first:] {
		if c.start >= to {
			break
		}
		lo, hi := max(from-c.start, 0), min(to-c.start, int64(len(c.hashes)))
		if i := slices.Index(c.hashes[lo:hi], hash); i >= 0 {
			return c.start + lo + int64(i)
		}
	}
	return -1
}

// truncate removes the names from number i on, and returns how many names and how much memory
// that frees.
func (s *sequence) truncate(i int64) (names, size int) {
	for n := len(s.chunks) - 1; n >= 0 && s.chunks[n].end() > i; n-- {
		c := s.chunks[n]
		names, size = names+len(c.hashes), size+c.size()
		if c.start >= i {
			s.chunks = s.chunks[:n]
			continue
		}
		c.hashes = slices.Clone(c.hashes[:i-c.start])
		if !c.packed {
			c.text = slices.Clone(c.text[:textLen(c.text, len(c.hashes))])
		}
		names, size = names-len(c.hashes), size-c.size()
	}
	return names, size
}

// drop removes whole chunks before number i, and returns how many names and how much memory that
// frees.
func (s *sequence) drop(i int64) (names, size int) {
	for len(s.chunks) > 0 && s.chunks[0].end() <= i {
		names, size = names+len(s.chunks[0].hashes), size+s.chunks[0].size()
		s.chunks = s.chunks[1:]
	}
	return names, size
}

// add adds a name with number i, which is not below end, and returns the memory that it takes. The
// hash of "" is 0.
func (s *sequence) add(i int64, name string, hash uint32, pack *packer) (size int) {
	var c *chunk
	if n := len(s.chunks); n > 0 && !s.chunks[n-1].packed {
		c = s.chunks[n-1]
		if c.end() != i || len(c.hashes) == chunkNames || len(c.text)+len(name) >= chunkText {
			size -= c.size()
			pack.chunk(c)
			size += c.size()
			c = nil
		}
	}
	if c == nil {
		c = &chunk{start: i}
		s.chunks = append(s.chunks, c)
	} else {
		size -= c.size()
	}
	c.hashes = append(c.hashes, hash)
	c.text = append(append(c.text, name...), 0)
	return size + c.size()
}

// textLen returns the length of the first n names of text.
func textLen(text []byte, n int) (length int) {
	for range n {
		length += bytes.IndexByte(text[length:], 0) + 1
	}
	return length
}

// A packer compresses chunks. The zero value is ready to use.
type packer struct{ w *flate.Writer }

// chunk compresses c.
func (p *packer) chunk(c *chunk) {
	if p.w == nil {
		p.w, _ = flate.NewWriter(nil, flate.DefaultCompression) // the level is valid
	}
	var b bytes.Buffer
	p.w.Reset(&b)
	p.w.Write(c.text) // a Buffer returns no error
	p.w.Close()
	c.hashes, c.text, c.packed = slices.Clone(c.hashes), slices.Clone(b.Bytes()), true
}

// An unpacker reads the names of a sequence, one after the other. It keeps the text of one chunk.
// The zero value is ready to use.
type unpacker struct {
	chunk *chunk
	text  []byte // of the names from next on
	next  int64  // a number
}

// name returns the name with number i, which is in c. It returns "" for a number without a name.
func (u *unpacker) name(c *chunk, i int64) string {
	if u.chunk != c || i < u.next {
		u.chunk, u.next, u.text = c, c.start, c.text
		if c.packed {
			r := flate.NewReader(bytes.NewReader(c.text))
			u.text, _ = io.ReadAll(r) // add has compressed it
		}
	}
	skip := textLen(u.text, int(i-u.next))
	n := textLen(u.text[skip:], 1)
	name := string(u.text[skip : skip+n-1])
	u.text, u.next = u.text[skip+n:], i+1
	if !c.packed { // names may be added to its text
		u.chunk = nil
	}
	return name
}
