package readahead

import "testing"

// A read belongs to the position that it continues, and a reader is sequential from its
// third read in a row.
func TestSequentialDetector(t *testing.T) {
	type read struct {
		off, n     int64
		reader     int64 // 0: a new one
		sequential bool
	}
	const far = 100 * chunkSize
	for _, tt := range []struct {
		name  string
		reads []read
	}{
		{"one reader", []read{{0, 10, 0, false}, {10, 10, 1, false}, {20, 10, 1, true}, {30, 10, 1, true}}},
		{"random access", []read{{far, 10, 0, false}, {3 * far, 10, 0, false}, {2 * far, 10, 0, false}}},
		{"two readers in turn", []read{
			{0, 10, 0, false}, {far, 10, 0, false}, {10, 10, 1, false}, {far + 10, 10, 2, false}, {20, 10, 1, true}, {far + 20, 10, 2, true},
		}},
		{"overtaken read", []read{{0, 10, 0, false}, {20, 10, 1, false}, {10, 10, 1, false}, {30, 10, 1, false}, {40, 10, 1, true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d sequentialDetector
			var readers int64
			for i, r := range tt.reads {
				state, sequential := d.observe(r.off, r.n)
				if state.run != r.reader || sequential != r.sequential {
					t.Errorf("read %d at %d: got reader %d, sequential %v; want %d, %v", i, r.off, state.run, sequential, r.reader, r.sequential)
				}
				if state.run == 0 { // mark the state of a new reader with its number
					readers++
					state.run = readers
				}
			}
		})
	}
}

// The detector remembers maxPositions readers, and those expire when other readers have
// requested positionExpiry bytes.
func TestSequentialDetectorForgets(t *testing.T) {
	var d sequentialDetector
	active := func() (n int) {
		for range d.active() {
			n++
		}
		return n
	}
	const far = 100 * chunkSize
	for i := range int64(maxPositions + 1) {
		d.observe(i*far, 10)
	}
	if got := active(); got != maxPositions {
		t.Errorf("got %d active readers, want %d", got, maxPositions)
	}
	d.observe(maxPositions*far+10, positionExpiry)
	if got := active(); got != 1 {
		t.Errorf("after a long read: got %d active readers, want 1", got)
	}
}
