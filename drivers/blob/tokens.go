package blob

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// A signer signs requests. The libraries' own would wait for a token for ever, or
// for as long as somebody else does, and sign for whomever a request is redirected
// to.
type signer struct {
	tokens *tokens
	inner  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s *signer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := s.tokens.token(r.Context())
	if err != nil {
		return nil, &tokenError{err}
	}
	r = r.Clone(r.Context())
	token.SetAuthHeader(r)
	return s.inner.RoundTrip(r)
}

// A tokenError is why a request could not be signed, and was not sent.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return "no token: " + e.err.Error() }

func (e *tokenError) Unwrap() error { return e.err }

// A way is that to whoever gives tokens. It keeps why the last request for one had
// no answer: the libraries tell that as text, which looks like that of credentials
// that are no good.
type way struct {
	unanswered atomic.Pointer[url.Error] // nil: it had one
}

// RoundTrip implements http.RoundTripper.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.unanswered.Store(&url.Error{Op: r.Method, URL: r.URL.Redacted(), Err: err})
		return nil, err
	}
	w.unanswered.Store(nil)
	return resp, nil
}

// tokens are what requests are signed with. The credentials for them are looked
// for again after renew.
type tokens struct {
	find   func() (oauth2.TokenSource, error) // looks for credentials
	way    way                                // by which they ask
	asking singleflight.Group

	mu    sync.Mutex // guards the following
	found oauth2.TokenSource
	at    time.Time // when it was
}

// source returns what gives tokens.
func (t *tokens) source() (oauth2.TokenSource, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.found == nil {
		found, err := t.find()
		if err != nil {
			return nil, err
		}
		t.found, t.at = found, time.Now()
	}
	return t.found, nil
}

// token returns a token that is good. One is asked for at a time, for all who
// want one, each of whom waits until its context is done.
func (t *tokens) token(ctx context.Context) (*oauth2.Token, error) {
	asked := t.asking.DoChan("", func() (any, error) { return t.ask() })
	select {
	case r := <-asked:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*oauth2.Token), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ask asks for a token, and waits for it.
func (t *tokens) ask() (*oauth2.Token, error) {
	source, err := t.source()
	if err != nil {
		return nil, err
	}
	t.way.unanswered.Store(nil)
	token, err := source.Token()
	if lost := t.way.unanswered.Load(); err != nil && lost != nil {
		return nil, lost
	}
	return token, err
}

// renew has the credentials be looked for again, unless they were since then. Who
// wants a token after that does not wait for one that was asked for before.
func (t *tokens) renew(began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at.Before(began) {
		t.found = nil
		t.asking.Forget("")
	}
}
