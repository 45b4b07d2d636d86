package posix

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// format is the version of the layout on disk that this package writes. It
// reads this one and no other.
const format = 1

// A marker says that a folder is Milkweed's, and of which dataset. It is
// milkweed.json in the folder, and never changes.
type marker struct {
	Format  int       `json:"format"`
	Source  string    `json:"source"`
	Created time.Time `json:"created"`
}

// decodeMarker reads a marker strictly, so that a folder is taken for ours
// only if it is. The format is looked at first: a later one may have fields
// that are not known here.
func decodeMarker(data []byte) (marker, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return marker{}, err
	}
	if version.Format > format {
		return marker{}, fmt.Errorf("format %d is of a later Milkweed, this one knows %d", version.Format, format)
	}
	if version.Format < 1 {
		return marker{}, errors.New("no format")
	}
	var m marker
	if err := decodeStrict(data, &m); err != nil {
		return marker{}, err
	}
	if m.Source == "" {
		return marker{}, errors.New("no source")
	}
	return m, nil
}

// decodeStrict decodes the one JSON value that data is, into v that has every
// field of it.
func decodeStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

// encode is v as it is kept in a file for people to read.
func encode(v any) []byte {
	data, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		panic(err) // of our own plain structs
	}
	return append(data, '\n')
}

// jsonText is s as it comes back from a JSON file: a path need not be UTF-8.
func jsonText(s string) string {
	var t string
	if json.Unmarshal(encode(s), &t) != nil {
		return s
	}
	return t
}

// readSmall reads a file of ours in the folder dirfd.
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
	if err := notRegular(&st); err != nil {
		return nil, err
	}
	const limit = 64 << 10
	data := make([]byte, limit)
	n, err := readAt(fd, data, 0, 0)
	switch {
	case err == nil:
		return nil, fmt.Errorf("%s: larger than any of ours", name)
	case err != io.EOF:
		return nil, err
	}
	return data[:n], nil
}
