package planfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestRead(t *testing.T) {
	long := strings.Repeat("x", 3*MaxPath)
	for _, c := range []struct {
		in   string
		end  byte
		want []string
		err  error
	}{
		{"a\nb c\n\nd/e", '\n', []string{"a", "b c", "d/e"}, nil},
		{"a\r\nb\r\n", '\n', []string{"a", "b"}, nil},
		{"a\nb\x00c\nd\n", '\n', []string{"a"}, ErrNUL},
		{"a\n\x00b\r\x00\x00c", 0, []string{"a\n", "b\r", "c"}, nil},
		{long + "\nb\n", '\n', []string{long[:MaxPath+2], "b"}, nil},
		{long, 0, []string{long[:MaxPath+2]}, nil},
		{"", '\n', nil, nil},
	} {
		var got []string
		err := Read(iotest.OneByteReader(strings.NewReader(c.in)), c.end, func(p []byte) error {
			got = append(got, string(p))
			return nil
		})
		if !slices.Equal(got, c.want) || !errors.Is(err, c.err) {
			t.Errorf("%.20q: got %.80q, %v, want %.80q, %v", c.in, got, err, c.want, c.err)
		}
	}
	failed := errors.New("failed")
	if err := Read(iotest.ErrReader(failed), '\n', nil); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if err := Read(strings.NewReader("a\nb\n"), '\n', func([]byte) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}

// No path is longer than what Read promises, has its end, or is lost.
func FuzzRead(f *testing.F) {
	f.Add([]byte("a\nb\r\n\x00c"), true)
	f.Add(bytes.Repeat([]byte("y"), MaxPath+3), false)
	f.Fuzz(func(t *testing.T, in []byte, lines bool) {
		end, n := byte(0), 0
		if lines {
			end = '\n'
		}
		err := Read(bytes.NewReader(in), end, func(p []byte) error {
			n++
			if len(p) == 0 || len(p) > MaxPath+2 || bytes.IndexByte(p, end) >= 0 {
				return fmt.Errorf("path %.20q of %d bytes", p, len(p))
			}
			return nil
		})
		if err != nil && !(lines && errors.Is(err, ErrNUL) && bytes.IndexByte(in, 0) >= 0) || err == io.EOF {
			t.Error(err)
		}
		want := 0
		for _, p := range bytes.Split(in, []byte{end}) {
			if len(bytes.TrimSuffix(p, []byte("\r"))) > 0 || len(p) > 0 && !lines {
				want++
			}
		}
		if err == nil && n != want {
			t.Errorf("got %d paths, want %d", n, want)
		}
	})
}
