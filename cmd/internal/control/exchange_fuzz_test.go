package control

import (
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
)

// FuzzReadFiles: a body is refused, or has files that can be written as the same body.
func FuzzReadFiles(f *testing.F) {
	f.Add("a\x00b\x00", false)
	f.Add("a\x007\x00b/c\x000\x00", true)
	f.Fuzz(func(t *testing.T, body string, sized bool) {
		files, sizes, err := readFiles(strings.NewReader(body), sized)
		if err != nil {
			return
		}
		if files.Len() == 0 || sized != (len(sizes) == files.Len()) || !sized && sizes != nil {
			t.Fatalf("%d files, %d sizes", files.Len(), len(sizes))
		}
		texts := strings.Split(strings.TrimSuffix(body, "\x00"), "\x00")
		for i := range files.Len() {
			name := files.Name(i)
			at := i
			if sized {
				at = 2 * i
			}
			if name != texts[at] || !drivers.ValidName(name) || name == "." {
				t.Fatalf("file %d is %q", i, name)
			}
		}
	})
}
