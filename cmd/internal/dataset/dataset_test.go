package dataset

import (
	"archive/zip"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// The size and the checksum of a file are those of the bytes on disk.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	files := []File{{Name: "a/b", Size: 300_000}, {Name: "c", Size: 0}}
	if err := Write(t.Context(), dir, files); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(dir + "/" + f.Name)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(data)) != f.Size || Checksum(0, data) != f.CRC {
			t.Errorf("%s: %d bytes with checksum %08x, want %+v", f.Name, len(data), Checksum(0, data), f)
		}
	}
	if got, want := Size(files), int64(300_000); got != want {
		t.Errorf("total size %d, want %d", got, want)
	}
}

// A zip reader finds the array in a NumPy archive.
func TestWriteNPZ(t *testing.T) {
	dir := t.TempDir()
	f := File{Name: "x.npz", Size: 100_000}
	if err := f.WriteNPZ(dir, 1); err != nil {
		t.Fatal(err)
	}
	z, err := zip.OpenReader(dir + "/x.npz")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	m, err := z.Open("x.npy")
	if err != nil {
		t.Fatal(err)
	}
	array, err := io.ReadAll(m)
	if err != nil {
		t.Fatal(err)
	}
	header := npyHeader(100_000)
	if len(header)%64 != 0 || !strings.HasSuffix(header, "\n") || len(array) != len(header)+100_000 {
		t.Errorf("a header of %d bytes, %d altogether", len(header), len(array))
	}
}

// NumPy loads both formats.
func TestNumPyLoads(t *testing.T) {
	drivertest.Need(t, "python3-numpy")
	dir := t.TempDir()
	archive, array := File{Name: "x.npz", Size: 100_000}, File{Name: "x.npy", Size: 100_000}
	if err := archive.WriteNPZ(dir, 1); err != nil {
		t.Fatal(err)
	}
	if err := array.WriteNPY(dir, 1); err != nil {
		t.Fatal(err)
	}
	const script = `import numpy, sys
a, b = numpy.load(sys.argv[1] + "/x.npz")["x"], numpy.load(sys.argv[1] + "/x.npy")
print(a.dtype, a.shape, (a == b).all(), a.std() > 70)`
	out, err := exec.Command("/usr/bin/python3", "-c", script, dir).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "uint8 (100000,) True True" {
		t.Errorf("%v: %s", err, got)
	}
}
