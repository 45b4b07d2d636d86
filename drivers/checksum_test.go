package drivers_test

import (
	"testing"

	"github.com/milkweedfs/milkweed/drivers"
)

// The checksum is the CRC-32C of RFC 3720, in one step or several: those of tiers and peers agree.
func TestChecksum(t *testing.T) {
	zeros, text := make([]byte, 32), []byte("123456789")
	for _, tt := range []struct {
		p    []byte
		want uint32
	}{{zeros, 0x8a9136aa}, {text, 0xe3069283}, {nil, 0}} {
		if got := drivers.Checksum(0, tt.p); got != tt.want {
			t.Errorf("%q: got %08x, want %08x", tt.p, got, tt.want)
		}
		half := len(tt.p) / 2
		if got := drivers.Checksum(drivers.Checksum(0, tt.p[:half]), tt.p[half:]); got != tt.want {
			t.Errorf("%q in two steps: got %08x, want %08x", tt.p, got, tt.want)
		}
	}
}
