package placement

import "testing"

// What readers got, and their requests, are counted once, by the level that served it: also of files in
// pieces, which are files of their own, and not for other nodes.
func TestReadBytes(t *testing.T) {
	const size = 3*testPiece + 1000
	c := newCluster(t, divided(2, 1<<30)...)
	c.put(4, func(int) int { return size })
	for epoch := range int64(2) {
		c.epoch(uint64(epoch))
		c.settle()
		for i, n := range c.nodes {
			s := n.handler.Stats()
			got := s.FillOpens.Read + s.PeerOpens.Read
			for _, o := range s.Opens {
				got += o.Read
			}
			if want := (epoch + 1) * 4 * size; got != want {
				t.Errorf("after epoch %d, node %d: readers got %d bytes, want %d: %+v", epoch, i, got, want, s)
			}
			requests := int64(0)
			for _, n := range s.Usage.RequestSizes {
				requests += n
			}
			if want := (epoch + 1) * 4 * (3*testPiece/(128<<10) + 1); requests != want {
				t.Errorf("after epoch %d, node %d: %d requests, want %d", epoch, i, requests, want)
			}
		}
	}
}
