package posix

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// Copies lists damaged copies, which ReadDir omits, and no file that Milkweed did not create.
func TestCopies(t *testing.T) {
	s := openIn(t, t.TempDir())
	for _, name := range []string{"right", "truncated", "touched", "exchanged", "planted"} {
		addCopy(t, s, name, "content of "+name)
	}
	damage := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	damage(os.Truncate(copyPath(s, "truncated"), 3))
	damage(os.Chtimes(copyPath(s, "touched"), time.Time{}, time.Unix(1, 0)))
	damage(os.Remove(copyPath(s, "exchanged")))
	damage(os.WriteFile(copyPath(s, "exchanged"), []byte("x"), 0o600)) // may have the same inode number
	damage(os.WriteFile(copyPath(s, "notes"), []byte("x"), 0o600))
	damage(os.Mkdir(filepath.Join(copyPath(s, "folder")), 0o700))
	if os.Geteuid() == 0 {
		damage(os.Chown(copyPath(s, "planted"), 12345, 12345))
	} else {
		damage(os.Remove(copyPath(s, "planted")))
	}
	infos, err := s.Copies(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, info := range infos {
		if info.Name != "exchanged" { // a file under the name of a copy counts if it has its inode number
			got = append(got, info.Name)
		}
	}
	slices.Sort(got)
	if want := []string{"folder", "right", "touched", "truncated"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// The account has the size that was written.
	if info, err := s.Stat(t.Context(), "truncated"); err == nil || info.Size != int64(len("content of truncated")) {
		t.Errorf("Stat of a truncated copy: %d bytes, %v", info.Size, err)
	}
}
