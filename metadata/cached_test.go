package metadata

import (
	"testing"

	"github.com/milkweedfs/milkweed/tiers"
)

// SourceOf takes a name for that of a piece only if it has all its parts.
func TestSourceOf(t *testing.T) {
	c := new(Container)
	for _, test := range []struct {
		copied tiers.CopyName
		file   string
		size   int64
	}{
		{"d/f", "d/f", -1},
		{piecesDir + "/d/f/3.5000", "d/f", 5000},
		{piecesDir + "/f/0.1", "f", 1},
		{piecesDir + "/d/f/3", piecesDir + "/d/f/3", -1},
		{piecesDir + "/d/f/x.5000", piecesDir + "/d/f/x.5000", -1},
		{piecesDir + "/d/f/3.-1", piecesDir + "/d/f/3.-1", -1},
		{piecesDir + "/3.5000", piecesDir + "/3.5000", -1},
	} {
		if file, size := c.SourceOf(test.copied); file != test.file || size != test.size {
			t.Errorf("SourceOf(%q) = %q, %d; want %q, %d", test.copied, file, size, test.file, test.size)
		}
	}
}
