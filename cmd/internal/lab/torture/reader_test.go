package torture

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 1+sharerWords && os.Args[1] == sharerWord {
		if ServeSharer(os.Args[2:], os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writeModel writes a version of all files to a folder.
func writeModel(t *testing.T, version int) worker {
	t.Helper()
	w := worker{testModel, t.TempDir()}
	for f := range testModel.Count {
		path := filepath.Join(w.point, testModel.Name(f))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, testModel.Content(f, version), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// Each way to read finds the version of a file, and each damage.
func TestWays(t *testing.T) {
	file := large(t)
	damages := map[string]func(path string) error{
		"none": func(string) error { return nil },
		"flip": func(path string) error {
			data := testModel.Content(file, 2)
			for i := 1000; i < len(data); i += 3000 { // pread reads only some ranges
				data[i] ^= 1
			}
			return os.WriteFile(path, data, 0o644)
		},
		"missing":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 2*pageSize) },
	}
	for _, k := range kinds {
		for name, damage := range damages {
			t.Run(string(k.kind)+"/"+name, func(t *testing.T) {
				w := writeModel(t, 2)
				if err := damage(filepath.Join(w.point, testModel.Name(file))); err != nil {
					t.Fatal(err)
				}
				for _, r := range w.do(task{Kind: k.kind, File: file, Newest: 4, Drop: true, Seed: 1}) {
					wrong := name == "flip" || name == "truncated"
					if got := r.Diff != nil || r.Short; got != wrong {
						t.Errorf("wrong: %v, want %v: %+v", got, wrong, r)
					}
					if got := r.Errno == unix.ENOENT; got != (name == "missing") {
						t.Errorf("ENOENT: %v: %+v", got, r)
					}
					if name == "none" && (r.Version != 2 || r.Errno != 0) {
						t.Errorf("got %+v", r)
					}
				}
			})
		}
	}
}
