"""Questions about the fields of the World Factbook; `{}` is the country's name."""

from __future__ import annotations

from collections.abc import Mapping

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "Introduction/Background/text": ("What is the history of {}?", "How did {} become a state?"),
    "Geography/Location/text": ("Where is {}?", "In which part of the world does {} lie?"),
    "Geography/Area/total /text": ("How large is {}?", "How many square kilometres does {} cover?"),
    "Geography/Area - comparative/text": (
        "Which American state is about as big as {}?",
        "How big is {} by comparison?",
    ),
    "Geography/Land boundaries/border countries/text": (
        "Which countries are next to {}?",
        "Who are the neighbours of {}?",
    ),
    "Geography/Coastline/text": ("How long is the shore of {}?", "How much sea front does {} have?"),
    "Geography/Climate/text": ("What is the weather like in {}?", "Is it hot or cold in {}?"),
    "Geography/Terrain/text": ("Is {} flat or mountainous?", "What does the landscape of {} look like?"),
    "Geography/Elevation/highest point/text": (
        "What is the tallest mountain in {}?",
        "Which peak of {} is the highest?",
    ),
    "Geography/Elevation/lowest point/text": ("Which place in {} is lowest?", "How far down does the land of {} go?"),
    "Geography/Natural resources/text": ("What is mined in {}?", "Which raw materials does {} have?"),
    "Geography/Natural hazards/text": ("Are there earthquakes or floods in {}?", "Which disasters threaten {}?"),
    "Geography/Population distribution/text": ("Where in {} do most people live?", "Which regions of {} are crowded?"),
    "Geography/Major rivers (by length in km)/text": (
        "Which rivers flow through {}?",
        "What are the longest streams in {}?",
    ),
    "People and Society/Population/total/text": (
        "How many people live in {}?",
        "What is the number of inhabitants of {}?",
    ),
    "People and Society/Nationality/noun/text": (
        "What is a person from {} called?",
        "How do you call somebody from {}?",
    ),
    "People and Society/Ethnic groups/text": ("Which peoples live in {}?", "What is the ethnic make-up of {}?"),
    "People and Society/Languages/Languages/text": ("What do they speak in {}?", "Which tongues are common in {}?"),
    "People and Society/Religions/text": ("What do people in {} believe in?", "Which faiths are followed in {}?"),
    "People and Society/Median age/total/text": (
        "How old is the typical person in {}?",
        "Is the population of {} young?",
    ),
    "People and Society/Major urban areas - population/text": (
        "What are the big cities of {}?",
        "Which towns of {} are large?",
    ),
    "People and Society/Life expectancy at birth/total population/text": (
        "How long do people live in {}?",
        "Up to what age can a newborn in {} hope to live?",
    ),
    "People and Society/Total fertility rate/text": (
        "How many babies do women in {} have?",
        "How large are families in {}?",
    ),
    "People and Society/Physician density/text": ("Are there enough doctors in {}?", "How many doctors does {} have?"),
    "People and Society/Literacy/total population/text": (
        "How many people in {} can read?",
        "Can everybody in {} read?",
    ),
    "Environment/Environmental issues/text": ("What pollutes {}?", "Which ecological problems does {} have?"),
    "Government/Government type/text": ("Is {} a democracy?", "How is {} ruled?"),
    "Government/Capital/name/text": ("What is the capital of {}?", "In which city does the government of {} sit?"),
    "Government/Independence/text": ("When did {} become free?", "Since when has {} been a country of its own?"),
    "Government/National holiday/text": (
        "What do they celebrate in {}?",
        "On which day is the feast of the nation in {}?",
    ),
    "Government/Legal system/text": ("Which kind of law do courts in {} apply?", "What are the laws of {} based on?"),
    "Government/Suffrage/text": ("Who may vote in {}?", "From which age on can one vote in {}?"),
    "Government/Executive branch/chief of state/text": ("Who is the head of {}?", "Who is king or president of {}?"),
    "Government/Flag description/text": ("Which colours does the flag of {} have?", "What does the flag of {} show?"),
    "Government/Flag/text": ("Which colours does the flag of {} have?", "What does the banner of {} show?"),
    "Government/National anthem(s)/title/text": (
        "Which song is the anthem of {}?",
        "What is sung for {} at the Olympics?",
    ),
    "Economy/Economic overview/text": ("How does {} earn its money?", "Is the economy of {} strong?"),
    "Economy/Agricultural products/text": ("What do farmers in {} grow?", "Which crops come from {}?"),
    "Economy/Industries/text": ("What do factories in {} make?", "Which branches of manufacturing does {} have?"),
    "Economy/Unemployment rate/Unemployment rate 2024/text": (
        "How many in {} have no job?",
        "Is it hard to find work in {}?",
    ),
    "Economy/Population below poverty line/text": ("How many people in {} are poor?", "Is there much poverty in {}?"),
    "Economy/Exports - partners/text": ("Who buys the goods of {}?", "To which countries does {} sell?"),
    "Economy/Exports - commodities/text": ("What does {} sell to other countries?", "Which goods leave {}?"),
    "Economy/Imports - partners/text": ("From whom does {} buy?", "Which countries supply {}?"),
    "Economy/Imports - commodities/text": ("What does {} have to buy abroad?", "Which goods are brought into {}?"),
    "Economy/Exchange rates/Currency/text": ("With what does one pay in {}?", "Which money is used in {}?"),
    "Energy/Electricity access/electrification - total population/text": (
        "Does everybody in {} have power at home?",
        "How many homes in {} have electric light?",
    ),
    "Energy/Coal/production/text": ("How much coal does {} dig up?", "Does {} produce coal?"),
    "Energy/Petroleum/total petroleum production/text": ("How much oil does {} pump?", "Does {} produce oil?"),
    "Communications/Broadcast media/text": (
        "Which television channels are there in {}?",
        "Who owns radio and TV in {}?",
    ),
    "Communications/Internet country code/text": ("How do web addresses from {} end?", "What is the domain of {}?"),
    "Communications/Internet users/percent of population/text": ("How many people in {} are online?", "Is {} online?"),
    "Transportation/Airports/text": ("How many places to land does {} have?", "Can one fly to {}?"),
    "Transportation/Railways/total/text": ("How long is the rail network of {}?", "Are there trains in {}?"),
    "Transportation/Ports/key ports/text": ("Where do ships land in {}?", "Which harbours does {} have?"),
    "Military and Security/Military and security forces/text": (
        "Does {} have an army?",
        "Which armed forces does {} have?",
    ),
    "Military and Security/Military service age and obligation/text": (
        "Do young men in {} have to be soldiers?",
        "Is there a draft in {}?",
    ),
    "Space/Space program overview/text": ("Does {} build satellites?", "What does {} do in space?"),
}
