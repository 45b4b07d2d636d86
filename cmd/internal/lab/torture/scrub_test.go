package torture

import (
	"os"
	"path/filepath"
	"testing"
)

// A copy holds a flipped bit if it differs from a version in that bit only.
func TestHolds(t *testing.T) {
	const file = 3
	s := &suite{model: Model{Seed: 1, Count: 10}, daemon: &daemon{memory: t.TempDir()}, summary: newSummary(1, "")}
	s.oracle = newOracle(s.model, s.summary, t.Logf)
	s.oracle.beginChange(file, false)
	path := filepath.Join(s.daemon.copies(s.daemon.memory), s.model.Name(file))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	last := s.model.Size(file, 1) - 1
	for _, off := range []int64{0, 70, last} {
		f := flipped{file: file, off: off, bit: 2}
		for name, change := range map[string]func(data []byte){
			"right":      func([]byte) {},
			"flipped":    func(data []byte) { data[off] ^= 4 },
			"other bit":  func(data []byte) { data[off] ^= 8 },
			"other byte": func(data []byte) { data[off^1] ^= 4 },
		} {
			data := s.model.Content(file, 1)
			change(data)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, want := s.holds(s.daemon.memory, f), name == "flipped"; got != want {
				t.Errorf("%s at %d: got %v, want %v", name, off, got, want)
			}
		}
	}
	os.Remove(path)
	if s.holds(s.daemon.memory, flipped{file: file}) {
		t.Error("a copy that was removed holds a bit")
	}
}
