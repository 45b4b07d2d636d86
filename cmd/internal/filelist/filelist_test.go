package filelist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/milkweedfs/milkweed/drivers"
)

// All commands accept the same spellings of a name, and name the line of a path that they refuse.
func TestRead(t *testing.T) {
	points := []string{"", "mnt", "/mnt/data"}
	long := strings.Repeat("x", 3*maxPath)
	for _, c := range []struct {
		in   string
		end  byte
		want []string
		err  string // "": there is none
	}{
		{"a\nb c\n\nd/e", '\n', []string{"a", "b c", "d/e"}, ""},
		{"a\r\nb\r\n", '\n', []string{"a", "b"}, ""},
		{"./a\n.//b/./c//\n...\n..a/b..", '\n', []string{"a", "b/c", "...", "..a/b.."}, ""},
		{"/mnt/data/a\n/mnt/data//b\nmnt/c\nmnt2", '\n', []string{"a", "b", "c", "mnt2"}, ""},
		{"a\n\x00b\r\x00\x00./c", 0, []string{"a\n", "b\r", "c"}, ""},
		{"\xff/a\n", '\n', []string{"\xff/a"}, ""},
		{"a\nb\x00c\nd\n", '\n', []string{"a"}, ErrNUL.Error()},
		{"a\n\n/etc/passwd\nb", '\n', []string{"a"}, `line 3: "/etc/passwd" is not the name of a file in the mount`},
		{"/mnt/database/a", '\n', nil, `line 1: "/mnt/database/a" is not the name of a file in the mount`},
		{"a\x00\x00/b\x00", 0, []string{"a"}, `path 3: "/b" is not`},
		{"a/../b", '\n', nil, `line 1: "a/../b": .. is not accepted`},
		{"/mnt/data/../b", '\n', nil, `line 1: "../b": .. is not accepted`},
		{"a\n.\n", '\n', []string{"a"}, `line 2: "." is not the name of a file`},
		{"/mnt/data\n", '\n', nil, `line 1: "." is not the name of a file`},
		{"a\n" + strings.Repeat("y", 4097), '\n', []string{"a"}, "line 2: a path of 4097 bytes, of at most 4096"},
		{long + "\nb\n", '\n', nil, "line 1: a path of more than 8192 bytes"},
		{long, 0, nil, "path 1: a path of more than"},
		{"", '\n', nil, ErrEmpty.Error()},
		{"\n\r\n", '\n', nil, ErrEmpty.Error()},
	} {
		var got []string
		err := Read(iotest.OneByteReader(strings.NewReader(c.in)), c.end, points, func(name string) error {
			got = append(got, name)
			return nil
		})
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%.40q: got %.80q, %v, want %.80q, %s", c.in, got, err, c.want, c.err)
		}
	}
	failed := errors.New("failed")
	if err := Read(iotest.ErrReader(failed), '\n', nil, nil); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if err := Read(strings.NewReader("a\nb\n"), '\n', nil, func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}

// Check reads the beginning, and takes no path that is cut there for a wrong one.
func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	line := "/mnt/data/a\n"
	for shift := range len(line) {
		text := strings.Repeat("x", shift) + "\n" + strings.Repeat(line, checked/len(line)+1)
		for _, c := range []struct{ text, want string }{
			{text, "<nil>"}, {text + "/etc/passwd", "<nil>"},
			{"/etc\n" + text, file + `: line 1: "/etc" is not the name of a file in the mount`},
		} {
			if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := Check(file, []string{"/mnt/data"}); fmt.Sprint(err) != c.want {
				t.Errorf("shifted by %d: got %v, want %s", shift, err, c.want)
			}
		}
	}
}

// Each path is a name in the form of drivers.ValidName, and none is lost.
func FuzzRead(f *testing.F) {
	f.Add([]byte("a\nb\r\n\x00c"), true)
	f.Add([]byte("./a\n/mnt//b\n../c"), true)
	f.Add(bytes.Repeat([]byte("y"), maxPath+3), false)
	f.Fuzz(func(t *testing.T, in []byte, lines bool) {
		end, n := byte(0), 0
		if lines {
			end = '\n'
		}
		err := Read(bytes.NewReader(in), end, []string{"/mnt"}, func(name string) error {
			n++
			if name == "." || !drivers.ValidName(name) {
				t.Errorf("%.20q of %d bytes", name, len(name))
			}
			return nil
		})
		if err == io.EOF {
			t.Error(err)
		}
		want := 0
		for _, p := range bytes.Split(in, []byte{end}) {
			if len(bytes.TrimSuffix(p, []byte("\r"))) > 0 || len(p) > 0 && !lines {
				want++
			}
		}
		if err == nil && n != want || err == ErrEmpty && want != 0 {
			t.Errorf("got %d paths, want %d; %v", n, want, err)
		}
	})
}
