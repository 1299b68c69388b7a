# expect: opaque


class Everything:
    def __getattr__(self, name):
        return self

    def __call__(self, *args, **named):
        return self

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self


square = Everything()
