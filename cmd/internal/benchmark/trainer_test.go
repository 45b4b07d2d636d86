package benchmark

import (
	"testing"
	"time"
)

// An emulated step takes at least its compute time.
func TestComputeFor(t *testing.T) {
	start := time.Now()
	if err := computeFor(3 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 3*time.Millisecond {
		t.Errorf("took %v", took)
	}
}
