package reader

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
)

// newDataset writes n files of a size.
func newDataset(t *testing.T, n int, size int64) (folder string, files []dataset.File) {
	t.Helper()
	for i := range n {
		files = append(files, dataset.File{Name: fmt.Sprintf("a/%d", i), Size: size})
	}
	folder = t.TempDir()
	if err := dataset.Write(t.Context(), folder, files); err != nil {
		t.Fatal(err)
	}
	return folder, files
}

// flip changes a byte of a file.
func flip(t *testing.T, path string) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p[1000] ^= 1
	if err := os.WriteFile(path, p, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A task fails on a file with a wrong byte if it compares the content, and on a
// file that is too short in any case.
func TestTasksNoticeWrongFiles(t *testing.T) {
	cut := func(t *testing.T, path string) {
		if err := os.Truncate(path, 299_999); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		kind   Kind
		change func(*testing.T, string)
		wrong  bool
	}{
		{"right", Check, func(*testing.T, string) {}, false},
		{"flipped", Check, flip, true},
		{"cut, checked", Check, cut, true},
		{"cut, read", Read, cut, true},
		{"cut, stat", Stat, cut, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder, files := newDataset(t, 3, 300_000)
			c.change(t, filepath.Join(folder, files[1].Name))
			w := worker{buf: make([]byte, BlockSize)}
			r := w.run(Task{Kind: c.kind, Folder: folder, Files: files}, nil)
			if (r.Error != "") != c.wrong {
				t.Errorf("got %+v", r)
			}
			if !c.wrong && r.Bytes != 900_000 {
				t.Errorf("%d bytes", r.Bytes)
			}
		})
	}
}

// An epoch names a file with a wrong byte and reads the others too.
func TestEpochNamesWrongFiles(t *testing.T) {
	folder, files := newDataset(t, 3, 70_000)
	flip(t, filepath.Join(folder, files[1].Name))
	var in, out bytes.Buffer
	if err := json.NewEncoder(&in).Encode(Task{Kind: Epoch, Folder: folder, Files: files}); err != nil {
		t.Fatal(err)
	}
	if err := Serve(&in, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var got Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
		t.Fatal(err)
	}
	if !got.Done || got.Files != 3 || len(got.Wrong) != 1 || !strings.Contains(got.Wrong[0], files[1].Name) {
		t.Errorf("got %+v", got)
	}
	if got.Stall <= 0 || got.Stall > got.Seconds {
		t.Errorf("a stall of %v s in %v s", got.Stall, got.Seconds)
	}
}

// A NumPy archive is read whole, and closed.
func TestBatchReadsArchives(t *testing.T) {
	dir := t.TempDir()
	f := dataset.File{Name: "x.npz", Size: 100_000}
	if err := f.WriteNPZ(dir, 1); err != nil {
		t.Fatal(err)
	}
	w := worker{buf: make([]byte, BlockSize)}
	n, err := w.batch([]Extent{{Path: dir + "/x.npz", Length: f.Size, Last: true, NPZ: true}})
	if err != nil || n != f.Size {
		t.Errorf("read %d of %d: %v", n, f.Size, err)
	}
	if w.file != nil {
		t.Error("the file is open")
	}
}

// A file is read with O_DIRECT as without, at any offset.
func TestDirectFile(t *testing.T) {
	dir := t.TempDir()
	want := make([]byte, 2<<20+77)
	rand.NewChaCha8([32]byte{}).Read(want)
	if err := os.WriteFile(dir+"/f", want, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := openDirect(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range []struct{ off, n int }{
		{0, len(want)}, {1, 10}, {4095, 2}, {1<<20 - 1, 4098}, {len(want) - 5, 5}, {len(want) - 5, 6}, {len(want), 1}, {len(want) + 9999, 1}, {7, 0},
	} {
		p := make([]byte, r.n)
		n, err := f.ReadAt(p, int64(r.off))
		left := max(0, min(r.n, len(want)-r.off))
		if n != left || (err == io.EOF) != (left < r.n) || err != nil && err != io.EOF || !bytes.Equal(p[:n], want[min(r.off, len(want)):][:n]) {
			t.Errorf("ReadAt(%d, %d) returns %d, %v", r.off, r.n, n, err)
		}
	}
	a := dataset.File{Name: "x.npz", Size: 3_000_000}
	if err := a.WriteNPZ(dir, 1); err != nil {
		t.Fatal(err)
	}
	w := worker{buf: make([]byte, BlockSize)}
	if n, err := w.batch([]Extent{{Path: dir + "/x.npz", Length: a.Size, Last: true, NPZ: true, Direct: true}}); err != nil || n != a.Size {
		t.Errorf("archive: %d of %d bytes, %v", n, a.Size, err)
	}
	if _, err := w.batch([]Extent{{Path: "/proc/self/stat", Length: 1, Direct: true}}); err == nil || !strings.Contains(err.Error(), "has no O_DIRECT") {
		t.Errorf("a file system without O_DIRECT: %v", err)
	}
}

// Each file of a task is dealt to one process.
func TestSplit(t *testing.T) {
	files := []dataset.File{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	got := split(Task{Kind: Read, Folder: "/x", Files: files}, 2)
	want := []Task{
		{Kind: Read, Folder: "/x", Files: []dataset.File{{Name: "a"}, {Name: "c"}}},
		{Kind: Read, Folder: "/x", Files: []dataset.File{{Name: "b"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
