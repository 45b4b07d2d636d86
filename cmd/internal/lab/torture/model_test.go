package torture

import (
	"bytes"
	"slices"
	"testing"
)

var testModel = Model{Seed: 1, Count: 20}

// The same seed gives the same content, and each version has its own.
func TestContent(t *testing.T) {
	a, b := testModel.Content(1, 0), Model{Seed: 1, Count: 20}.Content(1, 0)
	if !slices.Equal(a, b) {
		t.Error("the content is not a function of the seed")
	}
	if slices.Equal(a, testModel.Content(1, 1)) || slices.Equal(a, Model{Seed: 2}.Content(1, 0)) {
		t.Error("two versions, or two seeds, have the same content")
	}
	for f := range testModel.Count {
		if same := testModel.Size(f, 0) == testModel.Size(f, 1); same == testModel.Resizes(f) {
			t.Errorf("file %d: sizes of two versions are the same: %v", f, same)
		}
		for v := range 50 {
			if n := testModel.Size(f, v); n < minFileSize || n%pageSize < minRead {
				t.Errorf("file %d, version %d has %d bytes", f, v, n)
			}
		}
	}
}

// large returns a file of at least 5 pages whose size is constant.
func large(t *testing.T) int {
	t.Helper()
	for f := range testModel.Count {
		if !testModel.Resizes(f) && testModel.Size(f, 0) > 5*pageSize {
			return f
		}
	}
	t.Fatal("there is no such file")
	return 0
}

func TestIdentify(t *testing.T) {
	f := large(t)
	data := testModel.Content(f, 3)
	for _, r := range [][2]int64{{0, int64(len(data))}, {0, minRead}, {100, minRead}, {4000, 5000}, {4090, 200}, {8192, 4096}} {
		if got := testModel.Identify(data[r[0]:r[0]+r[1]], f, 5, r[0]); got != 3 {
			t.Errorf("%d bytes at %d: version %d, want 3", r[1], r[0], got)
		}
	}
	if got := testModel.Identify(data, f, 2, 0); got != -1 {
		t.Errorf("a version that does not exist yet: got %d", got)
	}
}

// Diff names what is wrong.
func TestDiff(t *testing.T) {
	f := large(t)
	for _, c := range []struct {
		name   string
		damage func(data []byte)
		want   Diff
	}{
		{"flip", func(p []byte) { p[5000] ^= 16 }, Diff{Versions: []int{0}, First: 5000, Bytes: pageSize, Flipped: true, Bit: 4}},
		{"flip in a header", func(p []byte) { p[pageSize] ^= 1 }, Diff{Versions: []int{0}, First: pageSize, Bytes: pageSize, Flipped: true}},
		{"mixture", func(p []byte) { copy(p, testModel.Content(f, 2)[:2*pageSize]) }, Diff{Versions: []int{2, 0}, First: -1}},
		{"zeros", func(p []byte) { clear(p[pageSize : 2*pageSize]) }, Diff{Versions: []int{0}, First: pageSize, Bytes: pageSize, Zeros: true}},
		{"planted", func(p []byte) { copy(p[pageSize:2*pageSize], bytes.Repeat(planted, pageSize/8)) }, Diff{Versions: []int{0}, First: pageSize, Bytes: pageSize, Planted: true}},
		{"two flips", func(p []byte) { p[5000] ^= 16; p[9000] ^= 1 }, Diff{Versions: []int{0}, First: 5000, Bytes: 2 * pageSize, Bit: 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := testModel.Content(f, 0)
			c.damage(data)
			if v := testModel.Identify(data, f, 3, 0); v != -1 {
				t.Fatalf("identified as version %d", v)
			}
			got := testModel.Diff(data, f, 3, 0)
			if !slices.Equal(got.Versions, c.want.Versions) {
				t.Errorf("versions %v, want %v", got.Versions, c.want.Versions)
			}
			got.Versions, c.want.Versions = nil, nil
			if got.First != c.want.First || got.Bytes != c.want.Bytes || got.Zeros != c.want.Zeros || got.Planted != c.want.Planted || got.Flipped != c.want.Flipped || got.Bit != c.want.Bit {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A few bytes of a page at the begin or the end of a read are not taken for those of another version,
// which they may be by chance.
func TestDiffOfUnalignedRead(t *testing.T) {
	f := large(t)
	data := testModel.Content(f, 0)
	data[2*pageSize+100] ^= 1
	for cut := range pageSize {
		off := pageSize - cut
		got := testModel.Diff(data[off:3*pageSize+cut], f, 100, int64(off))
		if !got.Flipped || !slices.Equal(got.Versions, []int{0}) {
			t.Fatalf("%d bytes before and after whole pages: %+v", cut, got)
		}
	}
}
