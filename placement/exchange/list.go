package exchange

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"sort"
)

// A List is a list of names in the order of their bytes. The number of a name is its place, from 0 on.
// A List is immutable.
//
// Names like those of ImageNet take 11 bytes each: a name is stored as the length of the prefix that
// it shares with the one before, the length of the rest, and the rest.
type List struct {
	text   []byte
	blocks []uint32 // where each block of blockNames begins in text; its first name is stored whole
	names  int
}

// blockNames is the number of names of a block. Finding a name decodes one block.
const blockNames = 16

// NewList returns the list of names, which are in order, and neither empty nor repeated.
func NewList(names iter.Seq[string]) (*List, error) {
	l := new(List)
	last := ""
	for name := range names {
		if name <= last {
			return nil, fmt.Errorf("exchange: the name %q does not come after %q", name, last)
		}
		shared := 0
		if l.names%blockNames == 0 {
			l.blocks = append(l.blocks, uint32(len(l.text)))
		} else {
			for shared < len(last) && last[shared] == name[shared] {
				shared++
			}
		}
		l.text = binary.AppendUvarint(l.text, uint64(shared))
		l.text = binary.AppendUvarint(l.text, uint64(len(name)-shared))
		l.text = append(l.text, name[shared:]...)
		last = name
		if l.names++; l.names > MaxFiles || len(l.text) > maxText {
			return nil, fmt.Errorf("exchange: more than %d names, or of more than %d bytes", MaxFiles, int64(maxText))
		}
	}
	l.text, l.blocks = slices.Clip(l.text), slices.Clip(l.blocks)
	return l, nil
}

const maxText = 1<<32 - 1

// Len returns the number of names.
func (l *List) Len() int { return l.names }

// Name returns the name with a number.
func (l *List) Name(i int) string {
	var buf [256]byte
	name, rest := buf[:0], l.text[l.blocks[i/blockNames]:]
	for range i%blockNames + 1 {
		name, rest = next(name, rest)
	}
	return string(name)
}

// Find returns the number of a name, and reports whether it is in the list.
func (l *List) Find(name string) (i int, ok bool) {
	var buf [256]byte
	block := sort.Search(len(l.blocks), func(b int) bool {
		first, _ := next(buf[:0], l.text[l.blocks[b]:])
		return string(first) > name
	}) - 1
	if block < 0 {
		return 0, false
	}
	n, rest := buf[:0], l.text[l.blocks[block]:]
	for i = block * blockNames; i < min((block+1)*blockNames, l.names); i++ {
		if n, rest = next(n, rest); string(n) >= name {
			return i, string(n) == name
		}
	}
	return i, false
}

// next decodes the name that follows last at the start of text, into the memory of last, and returns the
// text after it.
func next(last, text []byte) (name, rest []byte) {
	shared, n := binary.Uvarint(text)
	length, m := binary.Uvarint(text[n:])
	text = text[n+m:]
	return append(last[:shared], text[:length]...), text[length:]
}
