package peer

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/drivers/panics"
)

const (
	// lifetime is the time from a request to its expiry. Clocks may differ by as much.
	lifetime = 20 * time.Second

	// window is the number of sequence numbers of a client that are remembered. One that is older
	// than all of them is refused. It is far more than a client has in flight.
	window = 8192

	// maxInstances bounds the clients that are remembered.
	maxInstances = 1 << 16
)

// newInstance returns a random name for one life of a Node.
func newInstance() string {
	b := make([]byte, 16)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// nonce returns the nonce of the request with a sequence number. Each instance uses a number once
// for each server, and in ascending order.
func nonce(instance string, sequence uint64) string {
	return instance + "-" + strconv.FormatUint(sequence, 10)
}

// parseNonce is the inverse of nonce.
func parseNonce(n string) (instance string, sequence uint64, err error) {
	instance, number, _ := strings.Cut(n, "-")
	sequence, err = strconv.ParseUint(number, 10, 64)
	if err != nil || len(instance) != 32 {
		return "", 0, fmt.Errorf("nonce %q", n)
	}
	return instance, sequence, nil
}

// Errors of a replays.
var (
	errReplayed = errors.New("the request was received before")
	errCrowded  = errors.New("too many clients")
)

// A replays recognizes requests that were received before, by a sliding window of sequence numbers
// for each client, as IPsec does (RFC 4303, 3.4.3). A client is forgotten when all of its requests
// have expired.
type replays struct {
	mu      panics.Mutex // guards the following
	clients map[string]*sequences
	swept   time.Time // when expired clients were removed
}

// sequences are the sequence numbers of a client.
type sequences struct {
	highest uint64
	seen    [window / 64]uint64 // bit n%window: whether n, from the last window numbers, was received
	expiry  time.Time           // of the request that expires last
}

// admit records a request, whose MAC is right, and returns an error if it was received before or
// may have been.
func (r *replays) admit(n string, expiry, now time.Time) error {
	instance, sequence, err := parseNonce(n)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.swept) > lifetime || len(r.clients) >= maxInstances {
		r.sweep(now)
	}
	c := r.clients[instance]
	if c == nil {
		if len(r.clients) >= maxInstances {
			return errCrowded
		}
		if r.clients == nil {
			r.clients = make(map[string]*sequences)
		}
		c = &sequences{highest: sequence}
		r.clients[instance] = c
	}
	if !c.add(sequence) {
		return errReplayed
	}
	if expiry.After(c.expiry) {
		c.expiry = expiry
	}
	return nil
}

// sweep removes the clients all of whose requests have expired. r.mu must be held.
func (r *replays) sweep(now time.Time) {
	r.swept = now
	for instance, c := range r.clients {
		if now.After(c.expiry) {
			delete(r.clients, instance)
		}
	}
}

// add adds a sequence number, and reports whether it is new.
func (s *sequences) add(n uint64) bool {
	if n > s.highest {
		if n-s.highest >= window {
			clear(s.seen[:])
		} else {
			for i := s.highest + 1; i <= n; i++ {
				s.seen[i%window/64] &^= 1 << (i % 64)
			}
		}
		s.highest = n
	}
	bit := uint64(1) << (n % 64)
	if s.highest-n >= window || s.seen[n%window/64]&bit != 0 {
		return false
	}
	s.seen[n%window/64] |= bit
	return true
}
