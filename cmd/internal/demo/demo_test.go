package demo

import (
	"strings"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
)

// A demo fails if an epoch does not meet an expectation.
func TestProblems(t *testing.T) {
	whole := simpfs.Use{Operations: 30, Opens: 10, Reads: 20, Bytes: 1000}
	for _, c := range []struct {
		name string
		e    Epoch
		want string // part of the problem; "" for none
	}{
		{"direct", Epoch{Epoch: 2, Via: ViaSource, Bytes: 1000, Source: whole}, ""},
		{"first", Epoch{Epoch: 1, Via: ViaMilkweed, Bytes: 1000, Source: whole}, ""},
		{"later", Epoch{Epoch: 2, Via: ViaMilkweed, Bytes: 1000}, ""},
		{"twice", Epoch{Epoch: 1, Via: ViaMilkweed, Bytes: 1000, Source: simpfs.Use{Bytes: 2000}}, "2000 bytes were read from the source, for a dataset of 1000"},
		{"again", Epoch{Epoch: 2, Via: ViaMilkweed, Bytes: 1000, Source: whole}, "20 reads reached the source"},
		{"wrong", Epoch{Epoch: 2, Via: ViaMilkweed, Bytes: 1000, wrong: []string{"a: 3 bytes"}}, "a: 3 bytes"},
		{"short", Epoch{Epoch: 1, Via: ViaSource, Bytes: 999, Source: whole}, "999 bytes were read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &Report{Bytes: 1000}
			got := strings.Join(r.problems(c.e), "\n")
			if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
