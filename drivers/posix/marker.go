package posix

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// format is the version of the layout on disk. This package reads and writes only this one.
const format = 1

// A marker identifies a folder of Milkweed and its dataset. It is stored as milkweed.json in
// the folder and never changes.
type marker struct {
	Format   int       `json:"format"`
	Source   string    `json:"source"`
	Created  time.Time `json:"created"`
	Checksum uint32    `json:"checksum,omitempty"` // see sum; 0: none, in markers of early versions
}

// newMarker returns the marker of a new folder.
func newMarker(source string) marker {
	m := marker{Format: format, Source: jsonText(source), Created: time.Now().UTC().Truncate(time.Second)}
	m.Checksum = m.sum()
	return m
}

// sum returns the checksum of the other fields.
func (m marker) sum() uint32 {
	m.Checksum = 0
	return drivers.Checksum(0, encode(m))
}

// errLaterFormat is the error of decodeMarker for a marker that is not damaged.
var errLaterFormat = fmt.Errorf("the format is of a later version of Milkweed; this one supports format %d", format)

// decodeMarker decodes a marker strictly, so that no other file is mistaken for one. It
// checks the format first, because a later format may have unknown fields.
func decodeMarker(data []byte) (marker, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return marker{}, err
	}
	if version.Format > format {
		return marker{}, errLaterFormat
	}
	if version.Format < 1 {
		return marker{}, errors.New("format is missing")
	}
	var m marker
	if err := decodeStrict(data, &m); err != nil {
		return marker{}, err
	}
	if m.Source == "" {
		return marker{}, errors.New("source is missing")
	}
	if m.Checksum != 0 && m.Checksum != m.sum() {
		return marker{}, errors.New("the checksum is wrong")
	}
	return m, nil
}

// decodeStrict decodes data, which must be a single JSON value without unknown fields, into v.
func decodeStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("data after the JSON value")
	}
	return nil
}

// encode returns v as indented JSON.
func encode(v any) []byte {
	data, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		panic(err) // impossible for the structs of this package
	}
	return append(data, '\n')
}

// jsonText returns s after a round trip through JSON, which replaces bytes that are not
// UTF-8. A path may have such bytes.
func jsonText(s string) string {
	var t string
	if json.Unmarshal(encode(s), &t) != nil {
		return s
	}
	return t
}

// errLarge is the error of readSmall for a file that is too large.
var errLarge = errors.New("the file is too large")

// readSmall reads a small regular file in the folder dirfd, without following links.
func readSmall(dirfd int, name string) ([]byte, error) {
	fd, err := openat2(dirfd, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if err := checkRegular(&st); err != nil {
		return nil, err
	}
	const limit = 64 << 10
	data := make([]byte, limit)
	n, err := readAt(fd, data, 0, 0)
	switch {
	case err == nil:
		return nil, errLarge
	case err != io.EOF:
		return nil, err
	}
	return data[:n], nil
}
