package check

import (
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

type onFS string

func (t onFS) FSType() string { return string(t) }

func TestIsImage(t *testing.T) {
	at := func(seconds ...int64) (sample []drivers.Info) {
		for _, s := range seconds {
			sample = append(sample, drivers.Info{Mtime: time.Unix(s, 0)})
		}
		return sample
	}
	for _, c := range []struct {
		source any
		sample []drivers.Info
		want   string // "": it is none
	}{
		{onFS("squashfs"), at(1, 2, 3, 4), "squashfs"},
		{onFS("erofs"), nil, "erofs"},
		{onFS("iso9660"), nil, "iso9660"},
		{onFS("ext4"), at(1, 2, 3, 4), ""},
		{onFS("ext4"), at(1, 1, 1, 1), "all of 4 sampled files"},
		{onFS("ext4"), at(1, 1, 1), ""},
		{struct{}{}, []drivers.Info{{Version: "a"}, {Version: "b"}, {Version: "c"}, {Version: "d"}}, ""},
	} {
		if got := IsImage(c.source, c.sample); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v, %d files: got %q, want %q", c.source, len(c.sample), got, c.want)
		}
	}
}
