package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
)

// The first line that a Writer writes after "#mtree" names Milkweed. The last line has the number of entries
// and the SHA-256 of all bytes before it. Both lines are comments to other programs. So a manifest that was
// cut, edited or joined with another one is recognized.

const (
	beginLine = "# milkweed: begin\n"
	endPrefix = "# milkweed: end, "
)

// ErrDamaged is the error for a manifest that is not as a Writer has written it.
var ErrDamaged = errors.New("the manifest is damaged")

// A seal is what the last line of a manifest has.
type seal struct {
	hash    hash.Hash // of the lines so far
	entries int64
	begun   bool // there was a beginLine
	ended   bool // there was an end, which is right
}

func newSeal() *seal { return &seal{hash: sha256.New()} }

// end returns the last line of a manifest with the lines so far.
func (s *seal) end() []byte {
	return fmt.Appendf(nil, "%s%d entries, sha256 %x\n", endPrefix, s.entries, s.hash.Sum(nil))
}

// read adds a line, with the newline at its end.
func (s *seal) read(line []byte) error {
	switch {
	case s.ended:
		return fmt.Errorf("%w: it goes on after its last line", ErrDamaged)
	case s.begun && line[len(line)-1] != '\n':
		return fmt.Errorf("%w: it ends within a line", ErrDamaged)
	case bytes.HasPrefix(line, []byte(endPrefix)):
		if !bytes.Equal(line, s.end()) {
			return fmt.Errorf("%w: the number of entries or the SHA-256 in its last line is not that of the lines before", ErrDamaged)
		}
		s.ended = true
	case string(line) == beginLine:
		s.begun = true
	}
	s.hash.Write(line)
	return nil
}

// close checks that the manifest has an end, unless another program has written it.
func (s *seal) close() error {
	if s.begun && !s.ended {
		return fmt.Errorf("%w: its last line is missing", ErrDamaged)
	}
	return nil
}
