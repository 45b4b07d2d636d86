package placement

// steps finds the stride of a job: every n-th file of a directory, as by a job that reads its share
// of a dataset, in any order. A step is the distance of two files of a directory that are opened one
// after the other, by name. All steps of such a job are multiples of n. Those of a job that reads
// all files, or a random part, have no common divisor.
//
// Few other steps are tolerated, as those of a job that opens the first file to look at it. The zero
// value has no steps.
type steps struct {
	stride  int32 // its multiples are the steps, except for strikes; 0: there were no steps
	hits    int32 // steps that were multiples of stride
	strikes int32 // other steps
	net     int32 // the sum of both, each of at most maxStep
	gross   int32 // the same without the signs

	// The following is of the last steps, up to recentSteps.
	divisor int32 // the greatest common divisor of all of them; not 1
	recent  int32 // their number
	drift   int32 // their part of net
	way     int32 // their part of gross
}

// The rules of steps.
const (
	recentSteps = 16              // steps with a common divisor that make it the stride
	maxStrikes  = 16              // hits for each step that is tolerated
	maxSteps    = 128             // steps that count, before all count half
	maxStep     = 4 * orderWindow // of net
)

// add adds a step, which is not 0.
func (s *steps) add(step int) {
	n, bounded := int32(max(step, -step)), int32(min(max(step, -maxStep), maxStep))
	s.divisor = divisor(s.divisor, n)
	s.recent++
	s.drift += bounded
	s.way += max(bounded, -bounded)
	s.net += bounded
	s.gross += max(bounded, -bounded)
	switch {
	case s.stride == 0 || n%s.stride == 0:
		s.stride = divisor(s.stride, n)
		s.hits++
	case (s.strikes+1)*maxStrikes <= s.hits:
		s.strikes++
	default:
		s.stride = divisor(s.stride, n)
		s.hits, s.strikes = s.hits+s.strikes+1, 0
	}
	if s.recent == recentSteps && s.divisor > s.stride {
		s.stride, s.hits, s.strikes, s.net, s.gross = s.divisor, s.recent, 0, s.drift, s.way
	}
	if s.recent == recentSteps || s.divisor == 1 {
		s.divisor, s.recent, s.drift, s.way = 0, 0, 0, 0
	}
	if s.len() >= maxSteps {
		s.hits, s.strikes, s.net, s.gross = s.hits/2, s.strikes/2, s.net/2, s.gross/2
	}
}

// len returns the number of steps that count.
func (s *steps) len() int { return int(s.hits + s.strikes) }

// fits reports whether a job with these steps makes this one.
func (s *steps) fits(step int) bool { return s.stride > 0 && step%int(s.stride) == 0 }

// leavesOut reports whether a job that reads in the order of the names leaves out more than three
// in ten of the files that the stride leads to, or any of the first few. It has passed these and will
// not open them.
func (s *steps) leavesOut() bool {
	n := s.len()
	return 10*int(s.stride)*n*n < min(10*n, 7*n+3*minOpens/2)*int(max(s.net, -s.net))
}

// inOrder reports whether nearly all files are opened in the order of the names.
func (s *steps) inOrder() bool { return 10*max(s.net, -s.net) > 9*s.gross }

// divisor returns the greatest common divisor of a and b, of which one may be 0.
func divisor(a, b int32) int32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
